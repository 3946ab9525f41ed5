"""Small scripts in many styles, for the bar ``plausible``."""
