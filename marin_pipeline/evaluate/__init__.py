"""Loss and bits per byte, baselines, generation."""
