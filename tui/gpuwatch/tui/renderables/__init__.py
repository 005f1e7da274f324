"""Pure: numbers to text, strips and segments."""
