"""The doctor: what trainers and exporters refuse, or drop without a word, as rules that say where."""
