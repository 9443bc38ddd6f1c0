"""Marks that serving engines write by themselves, bit for bit: detected here, and written the same way."""
