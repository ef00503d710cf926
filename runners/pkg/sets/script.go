package sets

import (
	"context"
	"fmt"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/config"
)

// Script is the source of a set whose machines run a script once. The script fetches its job
// itself, so each machine counts as busy from its boot.
type Script struct {
	config *config.Set
}

// NewScript returns the source of a set with a script.
func NewScript(config *config.Set) *Script { return &Script{config} }

// Run waits for the end of ctx.
func (s *Script) Run(ctx context.Context, _ func()) { <-ctx.Done() }

// Waiting returns a name for each machine that is missing or has not started its script yet.
func (s *Script) Waiting(c Capacity) ([]string, bool) {
	var waiting []string
	for n := range max(*s.config.Instances.Warm-len(c.Busy), c.Ready) {
		waiting = append(waiting, fmt.Sprintf("script %d", n+1))
	}
	return waiting, true
}

// Prepare adds the script and its variables.
func (s *Script) Prepare(instance *instancev1alpha1.MacOSInstance) {
	script := s.config.Script
	instance.Spec.StartupScript, instance.Spec.Env, instance.Spec.EnvFrom = script.Script, script.Env, script.EnvFrom
}

// Start does nothing: the guest agent starts the script.
func (s *Script) Start(context.Context, *instancev1alpha1.MacOSInstance) error { return nil }

// Result returns the result of the script.
func (s *Script) Result(instance *instancev1alpha1.MacOSInstance) Result {
	return ScriptResult(instance)
}

// Forget does nothing.
func (s *Script) Forget(context.Context, *instancev1alpha1.MacOSInstance) error { return nil }

// Stale returns "".
func (s *Script) Stale(*instancev1alpha1.MacOSInstance) Result { return "" }
