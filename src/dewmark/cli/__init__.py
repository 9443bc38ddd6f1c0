"""The command line: thin wrappers that read files, call the library and print. Imported by nobody."""
