"""Training scripts in the style of other libraries' examples; the bar ``strangers`` runs them unmodified."""
