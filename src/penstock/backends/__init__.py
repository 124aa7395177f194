"""Stores: the contract in `base`, one package per database."""
