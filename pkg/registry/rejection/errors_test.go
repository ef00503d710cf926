package rejection

import (
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

func TestClientError(t *testing.T) {
	gr := schema.GroupResource{Group: "rack.macrack.io", Resource: "macnodeleases"}
	_, number := strconv.ParseUint("soon", 10, 64)
	foreign := apierrors.NewConflict(gr, "build", storage.NewInvalidObjError("/registry/x", "Precondition failed: UID in precondition: a, UID in object meta: b"))
	stale := apierrors.NewConflict(gr, "build", errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	other := errors.New("etcd is away")

	assert.True(t, apierrors.IsBadRequest(clientError(gr, "build", storage.ErrResourceVersionSetOnCreate)))
	assert.True(t, apierrors.IsBadRequest(clientError(gr, "build", number)))
	assert.EqualError(t, clientError(gr, "build", number), `invalid metadata.resourceVersion "soon"; use the value of the object that you read, or omit it`)
	assert.True(t, apierrors.IsConflict(clientError(gr, "build", foreign)))
	assert.EqualError(t, clientError(gr, "build", foreign), `Operation cannot be fulfilled on macnodeleases.rack.macrack.io "build": Precondition failed: UID in precondition: a, UID in object meta: b`)
	assert.Equal(t, error(stale), clientError(gr, "build", stale))
	assert.Equal(t, other, clientError(gr, "build", other))
	assert.NoError(t, clientError(gr, "build", nil))
}
