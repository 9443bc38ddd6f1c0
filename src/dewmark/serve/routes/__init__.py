"""The addresses of the service, by what they are for; each module has one ``router``."""
