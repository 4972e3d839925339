"""Tests of one traced request."""
