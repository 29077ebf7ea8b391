"""Haliax modules and their configurations."""
