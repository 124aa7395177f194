"""The rules of every verb, once, over the primitives of a store."""
