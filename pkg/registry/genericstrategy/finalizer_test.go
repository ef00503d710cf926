package genericstrategy

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestKeepFinalizer(t *testing.T) {
	const own, theirs = "macrack.io/own", "example.com/theirs"
	for name, tt := range map[string]struct {
		verb     string
		old, new []string
		want     []string
	}{
		"a PUT without any":               {"update", []string{own}, nil, []string{own}},
		"a PUT with another":              {"update", []string{own}, []string{theirs}, []string{theirs, own}},
		"a PUT without the other":         {"update", []string{own, theirs}, []string{own}, []string{own}},
		"a PUT with it, before it is due": {"update", nil, []string{own, theirs}, []string{theirs}},
		"a patch to another":              {"patch", []string{own}, []string{theirs}, []string{theirs, own}},
		"a patch that adds another":       {"patch", []string{own}, []string{own, theirs}, []string{own, theirs}},
		"a patch that removes it":         {"patch", []string{own}, nil, nil},
		"a patch that removes all":        {"patch", []string{own, theirs}, []string{}, []string{}},
		"a patch of an object without it": {"patch", nil, nil, nil},
		"no request":                      {"", []string{own}, nil, []string{own}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			if tt.verb != "" {
				ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Verb: tt.verb})
			}
			obj := &metav1.ObjectMeta{Finalizers: tt.new}
			KeepFinalizer(ctx, obj, &metav1.ObjectMeta{Finalizers: tt.old}, own)
			assert.Equal(t, tt.want, obj.Finalizers)
		})
	}
}
