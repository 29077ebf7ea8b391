"""What a step is: declaring, keys, the graph. Knows no store and no scheduling; pure, but for reading source files."""
