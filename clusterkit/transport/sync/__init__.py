"""Bring files to nodes that share no file system with this machine, and back.

manifest       a folder -> what belongs to it, after .gitignore
helper         a conversation with the program on a node that does the other half
deliver        a manifest -> a folder on a node, sending what differs
ingredients    what that is made from: our own wheel first
prepare        the virtual environment on each node
image_archive  an image of this machine's Docker -> the parts of a file
image_nodes    a node's Docker: what it has, and what it is sent
distribute     an image -> the Docker of many nodes, sending what they lack
"""
