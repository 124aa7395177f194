"""Payloads and results: Python values as JSON and back."""
