"""What an attacker would type: other users, hostile nodes and peers, planted files, hostile text."""
