"""Tests; the folders are those of the project."""
