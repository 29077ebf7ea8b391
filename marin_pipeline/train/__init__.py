"""The trainer: recipe, schedule, optimizer, checkpoints, the loop."""
