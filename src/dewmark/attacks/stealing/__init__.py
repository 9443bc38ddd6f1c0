"""Watermark stealing."""
