package rejection

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/registry/generic/registry"
)

// The writes of agents, controllers and administrators, who can see all objects, cost no read.
func TestCheckVisibleReadsNothingWithoutSelector(t *testing.T) {
	s := &Store{Store: &registry.Store{ // any read panics
		KeyFunc: func(context.Context, string) (string, error) { panic("the object is read") },
	}}
	assert.NoError(t, s.checkVisible(t.Context(), "build", false))
	s.Filter = func(context.Context) (fields.Selector, error) { return nil, nil }
	assert.NoError(t, s.checkVisible(t.Context(), "build", false))
	assert.NoError(t, s.checkVisible(t.Context(), "build", true))
	away := errors.New("away")
	s.Filter = func(context.Context) (fields.Selector, error) { return nil, away }
	assert.ErrorIs(t, s.checkVisible(t.Context(), "build", true), away)
}
