"""Stores on real servers."""

from tests.stores import gs_server, s3_server

__all__ = ["gs_server", "s3_server"]
