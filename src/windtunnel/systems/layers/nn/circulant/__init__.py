"""Weights of circulant blocks: their algebra, products, layers and integers."""
