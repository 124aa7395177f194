"""The names of everything that a store offers."""

from penstock.backends import ROLES, Backend


def every_verb() -> list[str]:
    """Return the public names of the contract; those of a role as "role.name"."""
    names = [name for name in dir(Backend) if not name.startswith("_")]
    return names + [
        f"{role}.{name}" for role, cls in ROLES.items() for name in dir(cls) if not name.startswith("_")
    ]
