"""What an attacker would type: other users, hostile nodes, planted files, hostile text."""
