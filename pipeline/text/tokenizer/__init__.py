"""What is read from one tokenizer: its control tokens, how it decodes, how long its texts may be."""
