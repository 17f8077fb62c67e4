"""For those who test plugins: random problems (`strategies`)."""
