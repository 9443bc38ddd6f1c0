"""`dew-open`: any word of any script carries the mark; an encoder gives it a vector when it first occurs."""
