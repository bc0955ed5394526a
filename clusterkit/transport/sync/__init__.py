"""Bring files to nodes that share no file system with this machine, and back.

manifest       a folder -> what belongs to it, after .gitignore
helper         a conversation with the program on a node that does the other half
deliver        a manifest -> a folder on a node, sending what differs
ingredients    what an environment is made from: our own wheel first
virtualenv     the virtual environment on each node
"""
