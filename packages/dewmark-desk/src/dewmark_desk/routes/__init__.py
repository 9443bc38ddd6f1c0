"""The routes of the service by purpose; each module has one ``router``."""
