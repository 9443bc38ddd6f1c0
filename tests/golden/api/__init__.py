"""All that the golden record knows of dewmark: the marks in plain words, and thin functions over its API.

When modules move or parameters are renamed, this folder is edited and nothing else: neither the sections nor
the record name a module or a parameter as the library spells it.
"""
