"""Documents and tokens: how they are read, kept, ordered and handed to training. Knows no scheduling and no jax."""
