"""Exercises and quizzes: one file for each chapter, all in the one form of `practice.form`."""
