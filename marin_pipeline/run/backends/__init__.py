"""Where tasks run: in this process, or in worker processes beside it."""
