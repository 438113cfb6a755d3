"""Which channels are removed: scores, and the choice by them."""
