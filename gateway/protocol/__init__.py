"""The Responses wire format, pure: bytes in, facts and bytes out; no I/O, no clock, no framework."""
