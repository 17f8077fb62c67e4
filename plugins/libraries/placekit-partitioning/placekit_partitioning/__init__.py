"""Library: what groups exchange, and the base class of policies that partition."""
