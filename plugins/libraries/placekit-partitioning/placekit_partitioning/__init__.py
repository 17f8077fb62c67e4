"""Library: the bytes that groups exchange, and the base class of policies that partition."""
