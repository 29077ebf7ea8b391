"""The open lab: what an experiment shows to people."""
