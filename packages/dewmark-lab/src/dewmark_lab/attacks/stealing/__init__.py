"""Watermark stealing: learn a mark from texts that carry it, then forge or scrub it. Start with `steal`."""
