"""Training scripts in styles that nothing of this package was made on; ``held_out_style`` runs them unmodified."""
