"""What both ends of a wire agree on: header names, wire forms, error codes and their HTTP status. Standard library only."""
