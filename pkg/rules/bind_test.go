package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCheckBind(t *testing.T) {
	free := BindFacts{Mac: "mac-1", Phase: "Available", Class: "base", SerialNumber: "C07", WantedClass: "base"}
	assert.NoError(t, CheckBind(free))
	for name, change := range map[string]func(*BindFacts){
		"leased, whatever the phase says": func(f *BindFacts) { f.Leased = true },
		"being deleted":                   func(f *BindFacts) { f.Deleting = true },
		"of another class":                func(f *BindFacts) { f.WantedClass = "pro" },
		"another Mac":                     func(f *BindFacts) { f.WantedSerialNumber = "C08" },
		"no phase":                        func(f *BindFacts) { f.Phase = "" },
		"Pending":                         func(f *BindFacts) { f.Phase = "Pending" },
		"Leased":                          func(f *BindFacts) { f.Phase = "Leased" },
		"Releasing":                       func(f *BindFacts) { f.Phase = "Releasing" },
		"Offline":                         func(f *BindFacts) { f.Phase = "Offline" },
		"Maintenance":                     func(f *BindFacts) { f.Phase = "Maintenance" },
		"Quarantined":                     func(f *BindFacts) { f.Phase = "Quarantined" },
	} {
		facts := free
		change(&facts)
		assert.Error(t, CheckBind(facts), name)
	}
	free.WantedSerialNumber = "C07"
	assert.NoError(t, CheckBind(free))
}
