"""Tests of the documentation, its pages and pictures."""
