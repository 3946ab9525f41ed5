"""What commands print as JSON of small stored inputs: a change of structure leaves all of it equal."""
