"""The step library: one file a kind of step. The science of data lives here, in the open."""
