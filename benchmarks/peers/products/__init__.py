"""One module per product; see `benchmarks/peers/product.py`."""
