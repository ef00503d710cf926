//go:build !darwin

package main

import "context"

type noJobs struct{}

func newJobs() jobs { return noJobs{} }

func (noJobs) agent() []string                    { return nil }
func (noJobs) slots() []string                    { return nil }
func (noJobs) stop(context.Context, string) error { return nil }
func (noJobs) remainingSteps() []string           { return nil }
