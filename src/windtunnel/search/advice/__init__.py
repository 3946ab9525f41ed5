"""Which machines to rent for a training: Stash's recommender over the catalog.

In: a job, machines with prices, a deadline, a budget. Out: the cheapest that is in time, with what stands in the way
of each cheaper one. Source: Sharma et al., Stash, ICDCS 2023.
"""
