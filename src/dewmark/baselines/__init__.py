"""Other people's watermarks on the same contract as DEW: one file per scheme.

Names with a leading underscore are what several of them share. No scheme imports another.
"""
